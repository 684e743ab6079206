"""JSON pointers follow RFC 6901."""

from hami_node.wire.values import annotation_pointer, pointer


def test_pointer_escapes_what_separates_its_steps() -> None:
    assert pointer("a/b~1") == "/a~1b~01"
    assert pointer("metadata", "labels", "x/y") == "/metadata/labels/x~1y"


def test_annotation_pointer_names_the_annotation() -> None:
    assert annotation_pointer("hami.io/x") == "/metadata/annotations/hami.io~1x"
