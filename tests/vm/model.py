"""placeholder"""
def summary(t,c): return {}
