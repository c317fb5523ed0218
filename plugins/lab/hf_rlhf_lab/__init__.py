"""The reward lab: rules as rewards, and the validation of any reward before it trains a model."""
