"""Two small worlds with an exact measure, and tiny models that can learn in them."""
