"""How traces and executions are identified and kept: digests and bundles."""
