"""Is this deployment fit to be measured? Rules over what recipes, servers and one small request say."""
