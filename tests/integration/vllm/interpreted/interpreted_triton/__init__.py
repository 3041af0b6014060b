"""A backend by the name of `cpu` for Triton that compiles nothing: its own interpreter runs the kernels (TRITON_INTERPRET=1).

vLLM's CPU build has the V2 model runner where Triton has a backend of that name. Triton's release for PyPI has none, but finds those of other
packages by the entry point `triton.backends`; whoever wants this one writes that, and puts this folder's parent into `PYTHONPATH`.
"""
