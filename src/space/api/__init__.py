"""HTTP, authentication, validation; writes desired state and answers with an operation.

From: client, cli
To: store, dataplane
"""
