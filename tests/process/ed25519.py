"""Ed25519 signatures after RFC 8032, section 5.1, for tests that play a peer with a key. Slow, and open to timing: tests only."""
import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
# The base point: y = 4/5, x even; extended coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, xy = T/Z.
BASE_Y = 4 * pow(5, P - 2, P) % P
BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
BASE = (BASE_X, BASE_Y, 1, BASE_X * BASE_Y % P)


def _add(one, other):
    a, b = (one[1] - one[0]) * (other[1] - other[0]) % P, (one[1] + one[0]) * (other[1] + other[0]) % P
    c, d = 2 * one[3] * other[3] * D % P, 2 * one[2] * other[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def _times(number, point):
    result = (0, 1, 1, 0)
    while number:
        if number & 1:
            result = _add(result, point)
        point, number = _add(point, point), number >> 1
    return result


def _bytes(point):
    inverse = pow(point[2], P - 2, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _hash(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


class Key:
    """A key pair from its 32-byte seed."""

    def __init__(self, seed: bytes):
        digest = hashlib.sha512(seed).digest()
        self._scalar = int.from_bytes(digest[:32], "little") & (2**254 - 8) | 2**254
        self._prefix = digest[32:]
        self.public = _bytes(_times(self._scalar, BASE))

    def sign(self, message: bytes) -> bytes:
        nonce = _hash(self._prefix, message) % ORDER
        point = _bytes(_times(nonce, BASE))
        return point + ((nonce + _hash(point, self.public, message) * self._scalar) % ORDER).to_bytes(32, "little")
