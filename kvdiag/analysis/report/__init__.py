"""A ledger as one page of figures and the tables behind them (kvdiag report)."""
