"""Absence: a shipment that is not picked up in time raises an alert, once, with no input at all."""
