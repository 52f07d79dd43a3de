"""x"""
def page() -> str:
    return ""
