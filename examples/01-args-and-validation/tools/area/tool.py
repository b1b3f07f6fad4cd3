#!/usr/bin/env python3
import os
import sys

sys.path.insert(0, os.environ["MCP_SDK"])
import tool_sdk  # noqa: E402


@tool_sdk.main
def area():
    width, height = tool_sdk.arg("width"), tool_sdk.arg("height")
    if width <= 0 or height <= 0:
        tool_sdk.fail("width and height must be above 0", code=-32602)
    return {"area": width * height}
