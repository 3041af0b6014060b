"""The driver: what Triton asks of one. The interpreter asks for none, so it has no device and is never the active one."""

from triton.backends.driver import DriverBase


class Interpreter(DriverBase):
    """A device that is not there."""

    @staticmethod
    def is_active() -> bool:
        return False

    def map_python_to_cpp_type(self, ty):
        del ty
        raise _not_interpreted()

    def get_current_target(self):
        raise _not_interpreted()

    def get_active_torch_device(self):
        raise _not_interpreted()

    def get_benchmarker(self):
        raise _not_interpreted()


def _not_interpreted():
    return RuntimeError("this backend runs kernels in Triton's interpreter only: set TRITON_INTERPRET=1")
