"""Research refiner: answers whose every claim cites the tool output it came from."""
