"""Every message of every API that tidelog speaks: one module per API.

The field names, versions and defaults are Kafka's (4.3).  A module declares; the
compiler does the rest.
"""
