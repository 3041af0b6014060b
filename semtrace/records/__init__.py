"""What a trace and an execution say: enumerations, tables, documents, and how chat requests lie in them."""
