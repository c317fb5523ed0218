"""Publishing to and pulling from the Hub."""
