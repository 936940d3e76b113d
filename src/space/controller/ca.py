"""The deployment's certificate authority: it signs the controller's certificate and those of enrolled nodes."""

import datetime
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# The name in the controller's certificate: workers check it whatever address they dial.
CONTROLLER_NAME = "space-controller"
CA_YEARS = 10  # rotating the authority means enrolling every node again
LEAF_YEARS = 2
SKEW = datetime.timedelta(minutes=5)  # a node's clock may be behind


def new_key() -> ec.EllipticCurvePrivateKey:
    """A key for one part."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The private key as it lies on disk."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_csr(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A request to be signed; the name in it is not looked at."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    return (
        x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    )


def ensure_ca(state_dir: Path) -> Path:
    """Make `state_dir/ca` (ca.crt, ca.key, controller.crt, controller.key) where it is missing; gives the folder."""
    folder = state_dir / "ca"
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    if not (folder / "ca.crt").exists():
        key = new_key()
        _write(folder / "ca.key", key_pem(key))
        certificate = _certificate("SPACE deployment CA", key.public_key(), CA_YEARS, signer=(key, None))
        _write(folder / "ca.crt", certificate.public_bytes(Encoding.PEM), 0o644)
    if not (folder / "controller.crt").exists():
        key = new_key()
        _write(folder / "controller.key", key_pem(key))
        certificate = _certificate(CONTROLLER_NAME, key.public_key(), LEAF_YEARS, signer=load(folder), server=True)
        _write(folder / "controller.crt", certificate.public_bytes(Encoding.PEM), 0o644)
    return folder


def load(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The authority's key and certificate."""
    key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key, x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())


def sign_node(folder: Path, csr_pem: bytes, node: str) -> x509.Certificate:
    """A client certificate for `node`; ValueError when the request does not prove its key."""
    csr = x509.load_pem_x509_csr(csr_pem)
    key = csr.public_key()
    if not csr.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("the certificate request is not signed by its own elliptic-curve key")
    return _certificate(node, key, LEAF_YEARS, signer=load(folder))


def common_name(der: bytes) -> str:
    """The name in a certificate."""
    names = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    years: int,
    *,
    signer: tuple[ec.EllipticCurvePrivateKey, x509.Certificate | None],
    server: bool = False,
) -> x509.Certificate:
    signing_key, issuer = signer
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=365 * years))
        .add_extension(
            x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if issuer is None:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    else:
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    if server:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return builder.sign(signing_key, hashes.SHA256())


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """In one step, owned as the folder is: `space up` makes these as root for the controller's own user."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        if os.getuid() == 0:
            owner = path.parent.stat()
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
