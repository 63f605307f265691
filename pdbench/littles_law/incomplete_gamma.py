"""The regularised incomplete gamma functions without scipy: P(a, x) = P(X <= x) for X ~ Gamma(a, 1), and Q = 1 - P.

Series and continued fraction up to a = 400, beyond that Temme's uniform expansion (N. M. Temme, SIAM J. Math. Anal. 10,
1979). Relative error below 1e-7, also of the smaller one of the two, down to 1e-300.
"""

from __future__ import annotations

import math

LARGE_SHAPE = 400.0
_EPSILON = 1e-11
_TINY = 1e-300


def lower(a: float, x: float) -> float:
    """P(a, x) for a > 0 and x >= 0."""
    if x <= 0:
        return 0.0
    if a > LARGE_SHAPE:
        return _temme(a, x)[0]
    return _series(a, x) if x < a + 1 else 1 - _fraction(a, x)


def upper(a: float, x: float) -> float:
    """Q(a, x) for a > 0 and x >= 0."""
    if x <= 0:
        return 1.0
    if a > LARGE_SHAPE:
        return _temme(a, x)[1]
    return 1 - _series(a, x) if x < a + 1 else _fraction(a, x)


def log_density(a: float, x: float) -> float:
    """ln(x^a e^-x / Gamma(a + 1)): the mass of Poisson(x) at a where a is a whole number."""
    if a < LARGE_SHAPE:
        return a * math.log(x) - x - math.lgamma(a + 1)
    # The same through Stirling's series around x = a, where the direct form loses digits.
    return -a * deviance(x / a) - 0.5 * math.log(2 * math.pi * a) - (1 / (12 * a) - 1 / (360 * a**3))


def deviance(ratio: float) -> float:
    """ratio - 1 - ln(ratio), to full precision near 1 too."""
    d = ratio - 1
    if abs(d) > 0.02:
        return d - math.log(ratio) if ratio > 0 else math.inf
    return d * d * (1 / 2 - d * (1 / 3 - d * (1 / 4 - d * (1 / 5 - d * (1 / 6 - d * (1 / 7 - d / 8))))))


def _series(a: float, x: float) -> float:
    term = total = 1.0
    k = 0
    while term > total * _EPSILON:
        k += 1
        term *= x / (a + k)
        total += term
    return math.exp(log_density(a, x)) * total


def _fraction(a: float, x: float) -> float:
    """Lentz's method on the continued fraction of Q (Abramowitz and Stegun 6.5.31)."""
    b = x + 1 - a
    c, d = 1 / _TINY, 1 / b
    value = d
    for k in range(1, 100_000):
        factor = -k * (k - a)
        b += 2
        d = factor * d + b
        c = b + factor / c
        d = 1 / (d if abs(d) > _TINY else _TINY)
        c = c if abs(c) > _TINY else _TINY
        step = c * d
        value *= step
        if abs(step - 1) < _EPSILON:
            break
    return math.exp(log_density(a, x)) * a * value


def _temme(a: float, x: float) -> tuple[float, float]:
    """P and Q from 1/2 erfc(-+eta sqrt(a/2)) -+ R, R = e^(-a eta^2 / 2) / sqrt(2 pi a) * (c0 + c1 / a)."""
    mu = x / a - 1
    half = deviance(x / a)
    eta = math.copysign(math.sqrt(2 * half), mu)
    if abs(eta) < 0.3:
        c0 = _polynomial(eta, _C0)
        c1 = _polynomial(eta, _C1)
    else:
        c0 = 1 / mu - 1 / eta
        c1 = 1 / eta**3 - 1 / mu**3 - 1 / mu**2 - 1 / (12 * mu)
    if a * half > 700:
        return (0.0, 1.0) if mu < 0 else (1.0, 0.0)
    rest = math.exp(-a * half) / math.sqrt(2 * math.pi * a) * (c0 + c1 / a)
    root = eta * math.sqrt(a / 2)
    return 0.5 * math.erfc(-root) - rest, 0.5 * math.erfc(root) + rest


def _polynomial(x: float, coefficients: tuple[float, ...]) -> float:
    total = 0.0
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


# Taylor coefficients of c0 and c1 around eta = 0 (Temme 1979; DiDonato and Morris 1986, table 1).
_C0 = (-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600, 1 / 25515, -571 / 261273600)
_C1 = (-1 / 540, -1 / 288, 1 / 378, -77 / 77760, 1 / 4860)
