"""Published results of others, as ledgers of our contract."""
