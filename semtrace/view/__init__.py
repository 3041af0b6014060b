"""How traces and executions are shown to people."""
