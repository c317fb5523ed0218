"""Select preference pairs by reward models that were not trained on them."""
