"""Values of HAMi's chart as ours."""
