"""How commands print: tables that fit a terminal, JSON and YAML."""
