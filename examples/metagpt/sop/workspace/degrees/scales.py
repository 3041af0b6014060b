"""Temperature scales, by way of Kelvin."""


def to_kelvin(value: float, scale: str) -> float:
    if scale == "C":
        return value + 273.15
    return value if scale == "K" else (value + 459.67) * 5 / 9


def from_kelvin(value: float, scale: str) -> float:
    if scale == "C":
        return value - 273.15
    return value if scale == "K" else value * 9 / 5 - 459.67
