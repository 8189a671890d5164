//! Claims of JSON Web Tokens that somebody we trust has signed. A token that cannot be verified says nothing: it is as if none had
//! been sent, and whoever sends it counts as who it is without it.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use ring::{hmac, signature};
use serde::Deserialize;
use serde_json::{Map, Value};
use tollgate::{Clock, Ticks};

/// Longest token that is looked at.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;
/// Most keys of a set.
pub const KEYS_MAX: usize = 64;
/// By how much the clocks of whoever signs and of this machine may differ.
const LEEWAY: Ticks = Ticks::from_secs(30);

/// Whose tokens are believed.
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

/// One key, for one algorithm: what a token says about its own algorithm is compared, and never obeyed.
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

/// A set of keys as it is written (RFC 7517).
#[derive(Deserialize)]
struct Set {
    keys: Vec<Written>,
}

#[derive(Deserialize)]
struct Written {
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
    /// Believes tokens that are signed with a key of a set, in JSON.
    ///
    /// # Errors
    /// When it is no set of keys; the message says what would be accepted.
    pub fn new(jwks: &[u8]) -> Result<Self, String> {
        let set: Set = serde_json::from_slice(jwks).map_err(|error| format!("no set of keys: {error}"))?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!("more than {KEYS_MAX} keys"));
        }
        let mut keys = Vec::new();
        for (index, written) in set.keys.iter().enumerate() {
            // Keys that encrypt are none of ours.
            if written.purpose.as_deref().is_none_or(|purpose| purpose == "sig") {
                keys.push(written.read().map_err(|problem| format!("keys[{index}]: {problem}"))?);
            }
        }
        if keys.is_empty() {
            return Err(
                "no key that signs; accepted: oct, RSA, EC (P-256, P-384) and OKP (Ed25519)".to_owned()
            );
        }
        Ok(Self { keys, issuer: None, audience: None, clock: Clock::precise() })
    }

    /// Only tokens of this issuer.
    #[must_use]
    pub fn issuer(self, issuer: &str) -> Self {
        Self { issuer: Some(issuer.to_owned()), ..self }
    }

    /// Only tokens for this audience.
    #[must_use]
    pub fn audience(self, audience: &str) -> Self {
        Self { audience: Some(audience.to_owned()), ..self }
    }

    /// The same by another clock.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// The value of a claim: text, a number or a truth, of a token that is to be believed now.
    #[must_use]
    pub fn claim(&self, token: &str, name: &str) -> Option<String> {
        match self.claims(token)?.remove(name)? {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(truth) => Some(truth.to_string()),
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
        // Extensions that must be understood are not.
        let mut keys = self.keys.iter().filter(|key| header.crit.is_none() && key.is_meant(&header));
        keys.find(|key| key.has_signed(signed.as_bytes(), &signature))?;
        let claims: Map<String, Value> = serde_json::from_slice(&BASE64.decode(payload).ok()?).ok()?;
        self.is_valid(&claims).then_some(claims)
    }

    fn is_valid(&self, claims: &Map<String, Value>) -> bool {
        let now = self.clock.on_wall(self.clock.now());
        // Seconds may have a fraction; a whole second more or less is within the leeway.
        let at = |name: &str| claims.get(name).map(|value| value.as_f64().filter(|at| at.is_finite()));
        let seconds = |time: tollgate::Timestamp| time.unix_micros() / 1_000_000;
        #[allow(
            clippy::cast_precision_loss,
            reason = "seconds since 1970 are exact for as long as there are clocks"
        )]
        let (latest, earliest) = (seconds(now + LEEWAY) as f64, seconds(now - LEEWAY) as f64);
        let is_begun = at("nbf").is_none_or(|at| at.is_some_and(|at| at <= latest));
        // One that never ends is not believed: nobody could take it back.
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

impl Written {
    fn read(&self) -> Result<Key, String> {
        let field = |name: &str, value: &Option<String>| {
            let value = value.as_ref().ok_or_else(|| format!("{name}: missing"))?;
            BASE64.decode(value.trim_end_matches('=')).map_err(|_| format!("{name}: not in base64url"))
        };
        let (algorithm, material) = match (self.kty.as_str(), self.crv.as_deref(), self.alg.as_deref()) {
            ("oct", _, alg) => {
                let (name, algorithm) = match alg {
                    None | Some("HS256") => ("HS256", hmac::HMAC_SHA256),
                    Some("HS384") => ("HS384", hmac::HMAC_SHA384),
                    Some("HS512") => ("HS512", hmac::HMAC_SHA512),
                    Some(other) => {
                        return Err(format!("alg: {other:?} is not accepted; accepted: HS256, HS384, HS512"));
                    }
                };
                let secret = field("k", &self.k)?;
                if secret.len() < 32 {
                    return Err("k: shorter than 32 bytes can be guessed".to_owned());
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
                        return Err(format!(
                            "alg: {other:?} is not accepted; accepted: RS256, RS384, RS512, PS256"
                        ));
                    }
                };
                (name, Material::Rsa { modulus: field("n", &self.n)?, exponent: field("e", &self.e)? })
            }
            ("EC", Some(curve @ ("P-256" | "P-384")), _) => {
                let point = [vec![4], field("x", &self.x)?, field("y", &self.y)?].concat();
                (if curve == "P-256" { "ES256" } else { "ES384" }, Material::Point(point))
            }
            ("OKP", Some("Ed25519"), _) => ("EdDSA", Material::Point(field("x", &self.x)?)),
            (kind, ..) => {
                return Err(format!(
                    "kty: {kind:?} is not accepted; accepted: oct, RSA, EC (P-256, P-384), OKP (Ed25519)"
                ));
            }
        };
        Ok(Key { id: self.kid.clone(), algorithm, material })
    }
}

impl Key {
    /// Whether a token may have been signed with it.
    fn is_meant(&self, header: &Header) -> bool {
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

    /// A token of ours is believed while it lasts, and no other.
    #[test]
    fn tokens_that_are_believed() {
        let verifier = verifier(&secret_set());
        let claim = |header: &str, claims: &str| verifier.claim(&by_secret(header, claims), "org");
        let lasting = format!(r#"{{"org":"acme","exp":{}}}"#, NOW + 60);
        assert_eq!(claim(HS256, &lasting).as_deref(), Some("acme"));
        assert_eq!(claim(r#"{"alg":"HS256"}"#, &lasting).as_deref(), Some("acme"));
        let number = format!(r#"{{"org":42,"exp":{}.5}}"#, NOW + 60);
        assert_eq!(claim(HS256, &number).as_deref(), Some("42"));
        // Another key, another algorithm, or an extension that nobody here knows.
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
        // Over, not begun, or without an end.
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

    /// Issuer and audience, where they are asked for.
    #[test]
    fn issuers_and_audiences() {
        let verifier = verifier(&secret_set()).issuer("us").audience("api");
        let is_believed = |rest: &str| {
            let claims = format!(r#"{{"org":"acme","exp":{},{rest}}}"#, NOW + 60);
            verifier.claim(&by_secret(HS256, &claims), "org").is_some()
        };
        assert!(is_believed(r#""iss":"us","aud":"api""#));
        assert!(is_believed(r#""iss":"us","aud":["web","api"]"#));
        assert!(!is_believed(r#""iss":"them","aud":"api""#));
        assert!(!is_believed(r#""iss":"us","aud":"web""#));
        assert!(!is_believed(r#""iss":"us""#));
    }

    /// Keys of every kind that rings. The story of confused algorithms: a public key used as a secret signs nothing.
    #[test]
    fn public_keys() {
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

    /// Sets that cannot be read say what would be.
    #[test]
    fn wrong_sets() {
        for (set, told) in [
            ("", "no set of keys"),
            (r#"{"keys":[]}"#, "no key that signs"),
            (r#"{"keys":[{"kty":"oct","k":"c2hvcnQ"}]}"#, "keys[0]: k: shorter than 32 bytes"),
            (r#"{"keys":[{"kty":"RSA","e":"AQAB"}]}"#, "keys[0]: n: missing"),
            (r#"{"keys":[{"kty":"EC","crv":"P-521"}]}"#, "accepted: oct, RSA, EC (P-256, P-384)"),
            (r#"{"keys":[{"kty":"RSA","alg":"RSA-OAEP","n":"AQAB","e":"AQAB"}]}"#, "alg:"),
        ] {
            let error = Verifier::new(set.as_bytes()).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
