"""Test vectors of the key hash: an independent implementation of docs/design/key-hash.md, written from that page.

Run: python3 vectors.py > vectors.txt

Each line: the parts of the family, the parts of the key, the hash (32 hex digits: tag, then rest). Parts are hex,
separated by commas; `-` is an empty part, and `x*N` is a part of N bytes 0x78. Word n = 1, 2, ... of the secret is the
SplitMix64 output for seed 42 and counter n.
"""

M64 = 2**64 - 1
M128 = 2**128 - 1
BLOCK = 32  # pairs between two folds of the state


def splitmix64(n):
    z = (42 + n * 0x9E3779B97F4A7C15) & M64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
    return z ^ z >> 31


SECRET = [splitmix64(n) for n in range(1, 135)]
PAIRS = [SECRET[4 * i:4 * i + 4] for i in range(BLOCK)]
FAMILY = SECRET[128:132]
FOLD_KEY = SECRET[132:134]


def word(data):
    """At most 8 bytes as a little-endian word; missing bytes are zero."""
    return int.from_bytes(data, "little")


def fold(x):
    return x >> 64 ^ x & M64


def pairs_of(part):
    """The pairs of words of one part."""
    length = len(part)
    if length < 65534:
        second = part[-8:] if 8 <= length <= 14 else part[6:14]
        pairs, rest = [(length + (word(part[:6]) << 16), word(second))], part[14:]
    else:
        pairs, rest = [(65534, length)], part
    for i in range(0, len(rest), 16):
        pairs.append((word(rest[i:i + 8]), word(rest[i + 8:i + 16])))
    return pairs


def multiply(left, right, first, second, secret):
    """Both lanes after a pair under four words of secret."""
    a, b, c, d = secret
    left += ((first + a) & M64) * ((second + b) & M64)
    right += ((first + c) & M64) * ((second + d) & M64)
    return left & M128, right & M128


def absorb(left, right, parts):
    """Both lanes after all pairs of the parts, from position 0."""
    position = 0
    for first, second in (pair for part in parts for pair in pairs_of(part)):
        if position == BLOCK:
            left, right = multiply(5, 6, fold(left), fold(right), PAIRS[0])
            position = 1
        left, right = multiply(left, right, first, second, PAIRS[position])
        position += 1
    return left, right


def finish(left, right):
    left, right = fold(left), fold(right)
    return fold((left ^ FOLD_KEY[0]) * (right ^ FOLD_KEY[1])) | 2**30, right


def key_hash(family, key):
    tag, rest = finish(*absorb(1, 2, family))
    tag, rest = finish(*absorb(*multiply(3, 4, tag, rest, FAMILY), key))
    return tag << 64 | rest


def pattern(length, start=7):
    return bytes((i * 31 + start) % 256 for i in range(length))


def show(parts):
    def one(part):
        if len(part) >= 65533:
            assert part == b"x" * len(part)
            return f"x*{len(part)}"
        return part.hex() or "-"
    return ",".join(map(one, parts))


def cases():
    one, two = [b"api"], [b"tollgate", b"requests per client"]
    # 510 and 511 bytes: the longest part of 32 pairs, and the shortest of 33.
    for length in [*range(41), 63, 64, 255, 256, 496, 500, 505, 510, 511, 512, 520, 1000, 1024, 1040, 4096]:
        yield one, [pattern(length)]
    for length in (65533, 65534, 65600):
        yield one, [b"x" * length]
    # Several parts; the second and the third have other bytes than the first.
    for lengths in [(0, 0), (0, 5), (5, 0), (6, 8), (7, 7), (8, 6), (14, 15), (16, 300), (254, 256), (510, 0),
                    (0, 0, 0), (3, 0, 9), (0, 13, 0), (15, 30, 31), (200, 1, 400)]:
        yield two if sum(lengths) % 2 else one, [pattern(n, 7 + 50 * i) for i, n in enumerate(lengths)]
    yield one, [b"\xff" * 20, b"\x00" * 20]
    yield two, [b"ab", b"x" * 65534, b"c"]
    # Families: the same bytes split in other places, empty parts, and more than 32 pairs.
    for family in ([b"abcd"], [b"ab", b"cd"], [b"abc", b"d"], [b""], [b"", b""], [b"abcd", b""], [pattern(600)]):
        yield family, [b"192.0.2.1"]


if __name__ == "__main__":
    for family, key in cases():
        print(show(family), show(key), f"{key_hash(family, key):032x}")
