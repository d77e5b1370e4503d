"""minitorch_tvm"""
