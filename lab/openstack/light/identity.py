"""Keystone and Placement, both real, and the stub for the network and image services.

usage: identity.py SETTINGS
"""
import sys
import types

import common
import configuration
import stub
from common import PORTS

configuration.identity()
configuration.point_catalog()
# Keystone imports SAML, which spends two seconds on XML schemas. Nobody federates here.
schema = sys.modules['saml2.xml.schema'] = types.ModuleType('saml2.xml.schema')
schema.XMLSchemaError = ValueError
schema.validate = None
# Keystone reads the arguments of the process.
sys.argv = ['keystone']
common.queue_writers()

from keystone.wsgi.api import application as keystone  # noqa: E402
from placement.wsgi.api import application as placement  # noqa: E402

common.serve(keystone, PORTS['identity'], threads=12)
common.serve(placement, PORTS['placement'], threads=12)
common.serve(stub.application, PORTS['stub'], threads=4)
common.ready()
common.run_until_killed()
