"""Checks that anybody can call: the contract, an independent reference, worlds of known answer."""
