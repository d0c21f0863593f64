#!/bin/sh
# same.sh README EXAMPLE: the README shows the example that is compiled.
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$1" | diff - "$2"
