"""Relay Dynamo's events between its processes on loopback.    broker.py PUBLISH_PORT SUBSCRIBE_PORT

Without a relay, each Dynamo process publishes its events on a socket that is open on every interface.
"""

import sys

import zmq

context = zmq.Context()
incoming, outgoing = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
incoming.bind(f"tcp://127.0.0.1:{sys.argv[1]}")
outgoing.bind(f"tcp://127.0.0.1:{sys.argv[2]}")
zmq.proxy(incoming, outgoing)
