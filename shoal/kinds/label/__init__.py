"""label"""
