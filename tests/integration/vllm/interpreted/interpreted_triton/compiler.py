"""The compiler: it has no target, so Triton asks it for nothing."""

from triton.backends.compiler import BaseBackend


class NoCompiler(BaseBackend):
    """A compiler for no target."""

    @staticmethod
    def supports_target(target) -> bool:
        del target
        return False

    def hash(self):
        return "interpreted"

    def parse_options(self, options):
        raise NotImplementedError

    def add_stages(self, stages, options, language):
        raise NotImplementedError

    def load_dialects(self, context):
        raise NotImplementedError

    def get_module_map(self):
        return {}
