"""counter"""
