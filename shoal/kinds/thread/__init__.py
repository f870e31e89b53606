"""thread"""
