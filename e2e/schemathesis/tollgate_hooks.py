"""What JSON Schema cannot say: the name of an attribute is measured in bytes, not in characters."""

import schemathesis

NAME_MAX = 64


def names(value):
    if isinstance(value, list):
        return [name for item in value for name in names(item)]
    if isinstance(value, dict) and isinstance(value.get("attributes"), dict):
        return list(value["attributes"])
    return []


@schemathesis.hook
def filter_body(context, body):
    return all(len(name) > NAME_MAX or len(name.encode()) <= NAME_MAX for name in names(body))
