//! A CA for tests, and the certificates that it signs.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A CA.
pub struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, in PEM.
    pub pem: String,
}

impl std::fmt::Debug for TestCa {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("TestCa")
    }
}

/// A certificate and its key, in PEM.
#[expect(missing_debug_implementations, reason = "it holds a key")]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl TestCa {
    /// Creates a CA with a new key.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Signs a certificate for a server on the loopback address.
    pub fn server(&self) -> Pair {
        self.sign(&["127.0.0.1", "localhost"], &[ExtendedKeyUsagePurpose::ServerAuth])
    }

    /// Signs a certificate for a client.
    pub fn client(&self) -> Pair {
        self.sign(&["client.test"], &[ExtendedKeyUsagePurpose::ClientAuth])
    }

    /// Signs a certificate for a node of a fleet: a server on the loopback address that asks others.
    pub fn node(&self) -> Pair {
        self.sign(
            &["127.0.0.1", "localhost"],
            &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        )
    }

    fn sign(&self, names: &[&str], purposes: &[ExtendedKeyUsagePurpose]) -> Pair {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = purposes.to_vec();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}
