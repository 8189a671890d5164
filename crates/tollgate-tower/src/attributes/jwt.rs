//! Claims of JSON Web Tokens with a trusted signature. A token that cannot be verified has no claims, and its request counts
//! as one without a token.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use ring::{hmac, signature};
use serde::Deserialize;
use serde_json::{Map, Value};
use tollgate::policy::Problem;
use tollgate::{Clock, Ticks};

/// Longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;
/// Most keys of a set.
pub const KEYS_MAX: usize = 64;
/// Most by which the clocks of the issuer and of this machine may differ.
const LEEWAY: Ticks = Ticks::from_secs(30);

/// The accepted kinds of keys.
const KINDS: &str = "oct, RSA, EC (P-256, P-384) and OKP (Ed25519)";

/// Verifies tokens.
#[derive(Clone)]
pub struct Verifier {
    keys: Vec<Key>,
    issuer: Option<String>,
    audience: Option<String>,
    clock: Clock,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verifier of {} keys", self.keys.len())
    }
}

/// One key, for one algorithm. The algorithm in the header of a token is compared with it, and never chosen by the token.
#[derive(Clone)]
struct Key {
    id: Option<String>,
    algorithm: &'static str,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Secret(hmac::Key),
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    Point(Vec<u8>),
}

/// A JWK set (RFC 7517).
#[derive(Deserialize)]
struct KeySet {
    keys: Vec<WrittenKey>,
}

#[derive(Deserialize)]
struct WrittenKey {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    alg: Option<String>,
    #[serde(default, rename = "use")]
    purpose: Option<String>,
    #[serde(default)]
    crv: Option<String>,
    #[serde(default)]
    k: Option<String>,
    #[serde(default)]
    n: Option<String>,
    #[serde(default)]
    e: Option<String>,
    #[serde(default)]
    x: Option<String>,
    #[serde(default)]
    y: Option<String>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    crit: Option<Value>,
}

impl Verifier {
    /// Accepts tokens that are signed with a key of a JWK set, in JSON.
    ///
    /// # Errors
    /// When it is not a set of keys.
    pub fn new(jwks: &[u8]) -> Result<Self, Problem> {
        let set: KeySet = serde_json::from_slice(jwks)
            .map_err(|error| Problem::new(format!("no set of keys: {error}"), "a JWK set in JSON"))?;
        if set.keys.len() > KEYS_MAX {
            return Err(Problem::new(format!("{} keys", set.keys.len()), format!("at most {KEYS_MAX}")));
        }
        let mut keys = Vec::new();
        for (index, written) in set.keys.iter().enumerate() {
            // Keys for encryption are skipped.
            if written.purpose.as_deref().is_none_or(|purpose| purpose == "sig") {
                let key = written.read().map_err(|Problem { message, accepted }| {
                    Problem::new(format!("keys[{index}]: {message}"), accepted)
                });
                keys.push(key?);
            }
        }
        if keys.is_empty() {
            return Err(Problem::new("no key that signs", KINDS));
        }
        Ok(Self { keys, issuer: None, audience: None, clock: Clock::precise() })
    }

    /// Accepts only tokens of this issuer.
    #[must_use]
    pub fn issuer(self, issuer: &str) -> Self {
        Self { issuer: Some(issuer.to_owned()), ..self }
    }

    /// Accepts only tokens for this audience.
    #[must_use]
    pub fn audience(self, audience: &str) -> Self {
        Self { audience: Some(audience.to_owned()), ..self }
    }

    /// Uses another clock.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// The value of a claim of a valid token: a text, a number or a Boolean.
    #[must_use]
    pub fn claim(&self, token: &str, name: &str) -> Option<String> {
        match self.claims(token)?.remove(name)? {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    fn claims(&self, token: &str) -> Option<Map<String, Value>> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let header: Header = serde_json::from_slice(&BASE64.decode(header).ok()?).ok()?;
        let signature = BASE64.decode(signature).ok()?;
        // No critical extension is supported.
        let mut keys = self.keys.iter().filter(|key| header.crit.is_none() && key.may_have_signed(&header));
        keys.find(|key| key.has_signed(signed.as_bytes(), &signature))?;
        let claims: Map<String, Value> = serde_json::from_slice(&BASE64.decode(payload).ok()?).ok()?;
        self.is_valid(&claims).then_some(claims)
    }

    fn is_valid(&self, claims: &Map<String, Value>) -> bool {
        let now = self.clock.on_wall(self.clock.now());
        // Seconds may have a fraction. Rounding to a second is within the leeway.
        let at = |name: &str| claims.get(name).map(|value| value.as_f64().filter(|at| at.is_finite()));
        let seconds = |time: tollgate::Timestamp| time.unix_micros() / 1_000_000;
        #[allow(clippy::cast_precision_loss, reason = "seconds since 1970 are exact in a float")]
        let (latest, earliest) = (seconds(now + LEEWAY) as f64, seconds(now - LEEWAY) as f64);
        let is_begun = at("nbf").is_none_or(|at| at.is_some_and(|at| at <= latest));
        // A token without an expiry is refused, because it could not be revoked.
        let is_over = at("exp").flatten().is_none_or(|at| at <= earliest);
        let is_text = |name: &str, wanted: &str| claims.get(name).and_then(Value::as_str) == Some(wanted);
        let is_issued = self.issuer.as_ref().is_none_or(|issuer| is_text("iss", issuer));
        let is_meant = self.audience.as_ref().is_none_or(|audience| match claims.get("aud") {
            Some(Value::Array(several)) => several.iter().any(|one| one.as_str() == Some(audience)),
            _ => is_text("aud", audience),
        });
        is_begun && !is_over && is_issued && is_meant
    }
}

impl WrittenKey {
    fn read(&self) -> Result<Key, Problem> {
        let accepted = "bytes in base64url";
        let field = |name: &str, value: &Option<String>| {
            let value = value.as_ref().ok_or_else(|| Problem::new(format!("{name}: missing"), accepted))?;
            BASE64
                .decode(value.trim_end_matches('='))
                .map_err(|_| Problem::new(format!("{name}: not in base64url"), accepted))
        };
        let (algorithm, material) = match (self.kty.as_str(), self.crv.as_deref(), self.alg.as_deref()) {
            ("oct", _, alg) => {
                let (name, algorithm) = match alg {
                    None | Some("HS256") => ("HS256", hmac::HMAC_SHA256),
                    Some("HS384") => ("HS384", hmac::HMAC_SHA384),
                    Some("HS512") => ("HS512", hmac::HMAC_SHA512),
                    Some(other) => {
                        return Err(unknown("alg", other, "HS256, HS384, HS512"));
                    }
                };
                let secret = field("k", &self.k)?;
                if secret.len() < 32 {
                    return Err(Problem::new("k: shorter than 32 bytes can be guessed", "32 bytes or more"));
                }
                (name, Material::Secret(hmac::Key::new(algorithm, &secret)))
            }
            ("RSA", _, alg) => {
                let name = match alg {
                    None | Some("RS256") => "RS256",
                    Some("RS384") => "RS384",
                    Some("RS512") => "RS512",
                    Some("PS256") => "PS256",
                    Some(other) => {
                        return Err(unknown("alg", other, "RS256, RS384, RS512, PS256"));
                    }
                };
                (name, Material::Rsa { modulus: field("n", &self.n)?, exponent: field("e", &self.e)? })
            }
            ("EC", Some(curve @ ("P-256" | "P-384")), _) => {
                let point = [vec![4], field("x", &self.x)?, field("y", &self.y)?].concat();
                (if curve == "P-256" { "ES256" } else { "ES384" }, Material::Point(point))
            }
            ("OKP", Some("Ed25519"), _) => ("EdDSA", Material::Point(field("x", &self.x)?)),
            (kind, ..) => return Err(unknown("kty", kind, KINDS)),
        };
        Ok(Key { id: self.kid.clone(), algorithm, material })
    }
}

fn unknown(field: &str, given: &str, accepted: &str) -> Problem {
    Problem::new(format!("{field}: {given:?} is not accepted"), accepted)
}

impl Key {
    /// Whether the header of a token names this key.
    fn may_have_signed(&self, header: &Header) -> bool {
        self.algorithm == header.alg && (header.kid.is_none() || self.id.is_none() || self.id == header.kid)
    }

    fn has_signed(&self, text: &[u8], signed: &[u8]) -> bool {
        match &self.material {
            Material::Secret(key) => hmac::verify(key, text, signed).is_ok(),
            Material::Rsa { modulus, exponent } => {
                let parameters = match self.algorithm {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
                    _ => &signature::RSA_PSS_2048_8192_SHA256,
                };
                signature::RsaPublicKeyComponents { n: modulus, e: exponent }
                    .verify(parameters, text, signed)
                    .is_ok()
            }
            Material::Point(point) => {
                let algorithm: &'static dyn signature::VerificationAlgorithm = match self.algorithm {
                    "ES256" => &signature::ECDSA_P256_SHA256_FIXED,
                    "ES384" => &signature::ECDSA_P384_SHA384_FIXED,
                    _ => &signature::ED25519,
                };
                signature::UnparsedPublicKey::new(algorithm, point).verify(text, signed).is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use tollgate::{ManualClock, Timestamp};

    use super::*;

    const NOW: u64 = 1_700_000_000;
    const SECRET: &[u8] = b"a secret that has thirty-two bytes or more";

    fn secret_set() -> String {
        format!(r#"{{"keys":[{{"kty":"oct","kid":"one","k":"{}"}}]}}"#, BASE64.encode(SECRET))
    }

    fn verifier(set: &str) -> Verifier {
        let time = ManualClock::starting_at(Timestamp::from_unix_seconds(NOW));
        Verifier::new(set.as_bytes()).unwrap().clock(time.clock())
    }

    fn token(header: &str, claims: &str, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
        let signed = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
        let signature = BASE64.encode(sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn by_secret(header: &str, claims: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
        token(header, claims, |text| hmac::sign(&key, text).as_ref().to_vec())
    }

    const HS256: &str = r#"{"alg":"HS256","kid":"one"}"#;

    /// Only tokens with a known key are accepted, between their start and their expiry.
    #[test]
    fn only_valid_tokens_are_accepted() {
        let verifier = verifier(&secret_set());
        let claim = |header: &str, claims: &str| verifier.claim(&by_secret(header, claims), "org");
        let lasting = format!(r#"{{"org":"acme","exp":{}}}"#, NOW + 60);
        assert_eq!(claim(HS256, &lasting).as_deref(), Some("acme"));
        assert_eq!(claim(r#"{"alg":"HS256"}"#, &lasting).as_deref(), Some("acme"));
        let number = format!(r#"{{"org":42,"exp":{}.5}}"#, NOW + 60);
        assert_eq!(claim(HS256, &number).as_deref(), Some("42"));
        // Another key, another algorithm, or an unknown critical extension.
        for header in [
            r#"{"alg":"HS256","kid":"two"}"#,
            r#"{"alg":"none"}"#,
            r#"{"alg":"HS512"}"#,
            r#"{"alg":"RS256"}"#,
            r#"{"alg":"HS256","crit":["x"]}"#,
            "{}",
        ] {
            assert_eq!(claim(header, &lasting), None, "{header}");
        }
        // Expired, not yet valid, or without an expiry.
        for claims in [
            format!(r#"{{"org":"acme","exp":{}}}"#, NOW - 31),
            format!(r#"{{"org":"acme","exp":{},"nbf":{}}}"#, NOW + 60, NOW + 31),
            r#"{"org":"acme"}"#.to_owned(),
            r#"{"org":"acme","exp":"never"}"#.to_owned(),
            format!(r#"{{"org":["acme"],"exp":{}}}"#, NOW + 60),
        ] {
            assert_eq!(claim(HS256, &claims), None, "{claims}");
        }
        let good = by_secret(HS256, &lasting);
        for wrong in [
            "",
            ".",
            "..",
            "a.b.c",
            &good[1..],
            &good[..good.len() - 1],
            &good.replace('.', ".."),
            &"x".repeat(9_000),
        ] {
            assert_eq!(verifier.claim(wrong, "org"), None, "{wrong:.40}");
        }
    }

    #[test]
    fn issuer_and_audience_are_checked_if_configured() {
        let verifier = verifier(&secret_set()).issuer("us").audience("api");
        let is_accepted = |rest: &str| {
            let claims = format!(r#"{{"org":"acme","exp":{},{rest}}}"#, NOW + 60);
            verifier.claim(&by_secret(HS256, &claims), "org").is_some()
        };
        assert!(is_accepted(r#""iss":"us","aud":"api""#));
        assert!(is_accepted(r#""iss":"us","aud":["web","api"]"#));
        assert!(!is_accepted(r#""iss":"them","aud":"api""#));
        assert!(!is_accepted(r#""iss":"us","aud":"web""#));
        assert!(!is_accepted(r#""iss":"us""#));
    }

    /// Algorithm confusion fails: a token that is signed with the public key as an HMAC secret is refused.
    #[test]
    fn public_keys_verify_their_own_algorithm_only() {
        let random = SystemRandom::new();
        let claims = format!(r#"{{"org":"acme","exp":{}}}"#, NOW + 60);
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let point = BASE64.encode(pair.public_key().as_ref());
        let ed = verifier(&format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{point}"}}]}}"#));
        let signed = token(r#"{"alg":"EdDSA"}"#, &claims, |text| pair.sign(text).as_ref().to_vec());
        assert_eq!(ed.claim(&signed, "org").as_deref(), Some("acme"));
        let confused = token(r#"{"alg":"HS256"}"#, &claims, |text| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, pair.public_key().as_ref());
            hmac::sign(&key, text).as_ref().to_vec()
        });
        assert_eq!(ed.claim(&confused, "org"), None);

        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap();
        let point = pair.public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|half| BASE64.encode(half));
        let ec = verifier(&format!(r#"{{"keys":[{{"kty":"EC","crv":"P-256","x":"{x}","y":"{y}"}}]}}"#));
        let signed =
            token(r#"{"alg":"ES256"}"#, &claims, |text| pair.sign(&random, text).unwrap().as_ref().to_vec());
        assert_eq!(ec.claim(&signed, "org").as_deref(), Some("acme"));
        assert_eq!(ed.claim(&signed, "org"), None);
    }

    /// Errors say what would be accepted.
    #[test]
    fn invalid_key_sets_are_refused() {
        for (set, expected) in [
            ("", "no set of keys"),
            (r#"{"keys":[]}"#, "no key that signs"),
            (r#"{"keys":[{"kty":"oct","k":"c2hvcnQ"}]}"#, "keys[0]: k: shorter than 32 bytes"),
            (r#"{"keys":[{"kty":"RSA","e":"AQAB"}]}"#, "keys[0]: n: missing"),
            (r#"{"keys":[{"kty":"EC","crv":"P-521"}]}"#, "accepted: oct, RSA, EC (P-256, P-384)"),
            (r#"{"keys":[{"kty":"RSA","alg":"RSA-OAEP","n":"AQAB","e":"AQAB"}]}"#, "alg:"),
        ] {
            let error = Verifier::new(set.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
