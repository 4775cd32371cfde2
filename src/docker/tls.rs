//! TLS files, read and checked before anything is sent.

use std::{path::Path, sync::Arc};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use super::{connect::ConnectError, error::causes};
use crate::config::TlsFiles;

/// Trusts the given authority and nobody else, and shows the given certificate.
pub(super) fn tls_config(files: &TlsFiles) -> Result<rustls::ClientConfig, ConnectError> {
    const CA: &str = "RUNTIME_TLS_CA";
    const CERT: &str = "RUNTIME_TLS_CERT";
    const KEY: &str = "RUNTIME_TLS_KEY";
    let ca = read(CA, &files.ca)?;
    let certificate = read(CERT, &files.cert)?;
    let key = read(KEY, &files.key)?;

    let mut roots = rustls::RootCertStore::empty();
    for authority in certificates(CA, &files.ca, &ca)? {
        roots
            .add(authority)
            .map_err(|e| tls_file(CA, &files.ca, format!("holds no usable certificate: {e}")))?;
    }
    let chain = certificates(CERT, &files.cert, &certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|_| tls_file(KEY, &files.key, "holds no private key in PEM form".to_owned()))?;
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| ConnectError::TlsPair { reason: e.to_string() })?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|e| ConnectError::TlsPair { reason: format!("cannot be used together: {}", causes(&e)) })
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, ConnectError> {
    if path.is_dir() {
        return Err(tls_file(setting, path, "is a directory; name the PEM file in it".to_owned()));
    }
    std::fs::read(path).map_err(|e| tls_file(setting, path, format!("cannot be read: {e}")))
}

fn certificates(
    setting: &'static str,
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(tls_file(setting, path, "holds no certificate in PEM form".to_owned())),
    }
}

fn tls_file(setting: &'static str, path: &Path, reason: String) -> ConnectError {
    ConnectError::TlsFile { setting, path: path.to_owned(), reason }
}
