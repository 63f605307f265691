"""Did it change? Two measurements side by side: what may be compared, how sure a difference is, and the gate on it."""
