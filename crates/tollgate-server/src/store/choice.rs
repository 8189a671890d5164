//! Selects the store from the command line, the environment and the config file, in this order of precedence.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tollgate::{Engine, Policy, Ticks};
use tollgate_redis::{Nodes, RedisStore, Settings, TlsFiles};

use super::keys::word;
use super::{Fleet, Stores};
use crate::time_text::duration;

/// The name of a store in this process.
const MEMORY: &str = "memory";
/// The section of the config.
const STORE_SECTION: &str = "store";

/// The store section of a config file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreDocument {
    url: Option<String>,
    deadline: Option<String>,
    nodes: Option<NodesText>,
    min_nodes: Option<u32>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    secret_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl StoreDocument {
    /// Compiles the section. Each problem begins with its field, and shows no password.
    pub(crate) fn compile(self, problems: &mut Vec<String>) -> StoreSettings {
        let mut report = |problem: String| problems.push(format!("{STORE_SECTION}.{problem}"));
        if let Some(url) = self.url.as_deref().filter(|url| *url != MEMORY)
            && let Err(error) = url.parse::<Settings>()
        {
            report(format!("url: {error}; or `memory`, to count in this process"));
        }
        let deadline = self.deadline.and_then(|text| {
            store_deadline(&text).map_err(|error| report(format!("deadline: {error}"))).ok()
        });
        let nodes = self.nodes.and_then(|text| {
            let text = match text {
                NodesText::Number(number) => number.to_string(),
                NodesText::Word(word) => word,
            };
            nodes(&text).map_err(|error| report(format!("nodes: {text:?} is not accepted; {error}"))).ok()
        });
        StoreSettings {
            url: self.url,
            deadline,
            nodes,
            min_nodes: self.min_nodes,
            secret_file: self.secret_file,
            login: StoreLogin {
                user: self.user,
                password_file: self.password_file,
                ca: self.ca,
                cert: self.cert,
                key: self.key,
            },
        }
    }
}

/// The address may contain a password.
impl std::fmt::Debug for StoreDocument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreDocument").finish_non_exhaustive()
    }
}

/// The address may contain a password.
impl std::fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreSettings").finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "accepted: auto, or a whole number from 1 to 10000")]
enum NodesText {
    Number(u32),
    Word(String),
}

/// The store settings of a config, or of the command line and the environment.
#[derive(Clone, Default)]
pub(crate) struct StoreSettings {
    pub(crate) url: Option<String>,
    pub(crate) deadline: Option<Ticks>,
    pub(crate) nodes: Option<NodesChoice>,
    pub(crate) min_nodes: Option<u32>,
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) login: StoreLogin,
}

/// The credentials for a store.
#[derive(Clone, Default)]
pub(crate) struct StoreLogin {
    pub(crate) user: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// How many servers share a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodesChoice {
    /// The number of servers that register in the store.
    Counted,
    /// A fixed number.
    Fixed(u32),
}

/// Where counters live.
pub(crate) enum StoreChoice {
    /// In this process.
    Memory,
    /// In a store that other servers share.
    Shared(Box<SharedStore>),
}

/// A store that servers share.
pub(crate) struct SharedStore {
    pub(crate) settings: Settings,
    pub(crate) min_nodes: Option<u32>,
}

impl SharedStore {
    /// A description in one line, without secrets.
    pub(crate) fn line(&self) -> String {
        let settings = &self.settings;
        let tls = if settings.is_encrypted() { ", over TLS" } else { "" };
        format!("{}{tls}, each decision within {} ms", settings.topology(), settings.timeout().as_millis())
    }

    /// Creates an engine on this store. It starts to connect, and does not wait for the connection.
    ///
    /// # Errors
    /// When the settings contradict each other.
    pub(crate) fn engine(self, policy: Policy) -> Result<Engine<Stores>, String> {
        let store = RedisStore::start(self.settings).map_err(|error| format!("--store: {error}"))?;
        let fleet = Fleet::new(store, self.min_nodes.unwrap_or(0));
        Ok(Engine::builder().policy(policy).store(Stores::Redis(Arc::new(fleet))).build())
    }
}

impl StoreChoice {
    /// Whether counters live in this process.
    pub(crate) fn is_memory(given: &StoreSettings, file: &StoreSettings) -> bool {
        url(given, file) == MEMORY
    }

    /// The selected store.
    ///
    /// # Errors
    /// When the settings are invalid. The message begins with the flag or the section of the config that names the
    /// store, says what would be accepted, and never echoes a password.
    pub(crate) fn of(given: &StoreSettings, file: &StoreSettings) -> Result<Self, String> {
        if Self::is_memory(given, file) {
            return Ok(StoreChoice::Memory);
        }
        let named = if given.url.is_some() { "--store" } else { STORE_SECTION };
        let invalid = |error: &dyn std::fmt::Display| format!("{named}: {error}");
        let typed = given.login.clone();
        let filed = &file.login;
        let login = StoreLogin {
            user: typed.user.or_else(|| filed.user.clone()),
            password_file: typed.password_file.or_else(|| filed.password_file.clone()),
            ca: typed.ca.or_else(|| filed.ca.clone()),
            cert: typed.cert.or_else(|| filed.cert.clone()),
            key: typed.key.or_else(|| filed.key.clone()),
        };
        let mut settings = settings(url(given, file), &login)
            .map_err(|error| invalid(&format!("{error}; or `memory`, to count in this process")))?;
        if let Some(deadline) = given.deadline.or(file.deadline) {
            settings = settings
                .deadline(Duration::from_micros(deadline.as_micros()))
                .map_err(|error| invalid(&error))?;
        }
        let nodes = match given.nodes.or(file.nodes).unwrap_or(NodesChoice::Counted) {
            NodesChoice::Counted => Nodes::Counted,
            NodesChoice::Fixed(number) => Nodes::Fixed(number),
        };
        settings = settings.nodes(nodes).map_err(|error| invalid(&error))?;
        let secret = secret(given.secret_file.as_deref().or(file.secret_file.as_deref()));
        if let Some(secret) = secret.map_err(|error| invalid(&error))? {
            settings = settings.secret(&secret).map_err(|error| invalid(&error))?;
        }
        let min_nodes = given.min_nodes.or(file.min_nodes);
        Ok(StoreChoice::Shared(Box::new(SharedStore { settings, min_nodes })))
    }
}

fn url<'s>(given: &'s StoreSettings, file: &'s StoreSettings) -> &'s str {
    given.url.as_deref().or(file.url.as_deref()).unwrap_or(MEMORY)
}

/// The connection settings of a store, with its credentials.
///
/// # Errors
/// As [`StoreChoice::of`].
pub(crate) fn settings(url: &str, login: &StoreLogin) -> Result<Settings, String> {
    let mut settings = url.parse::<Settings>().map_err(|error| error.to_string())?;
    let user = login.user.as_deref().or(settings.credentials().0).map(str::to_owned);
    if let Some(path) = &login.password_file {
        settings = settings.login_from_file(user.as_deref(), path).map_err(|error| error.to_string())?;
    }
    match environment("TOLLGATE_STORE_PASSWORD").filter(|_| login.password_file.is_none()) {
        Some(password) => settings = settings.login(user.as_deref(), &password),
        None if login.user.is_some() && login.password_file.is_none() => match settings.credentials().1 {
            Some(password) => settings = settings.login(user.as_deref(), &password),
            None => {
                return Err("a user has a password; name its file with --store-password-file or `store: {password_file: FILE}`, or set \
                            TOLLGATE_STORE_PASSWORD"
                    .to_owned());
            }
        },
        None => {}
    }
    let files = TlsFiles { ca: login.ca.clone(), certificate: login.cert.clone(), key: login.key.clone() };
    if files != TlsFiles::default() {
        settings = settings.tls(files).map_err(|error| error.to_string())?;
    }
    Ok(settings)
}

/// Minimum and maximum time that a decision may wait for its store.
const STORE_DEADLINES: (Ticks, Ticks) = (Ticks::from_millis(1), Ticks::from_millis(50));

/// Parses how long a decision may wait for its store.
pub(crate) fn store_deadline(text: &str) -> Result<Ticks, String> {
    let accepted = "accepted: 1ms to 50ms, such as 5ms";
    let deadline = duration(text).map_err(|_| format!("not a duration; {accepted}"))?;
    let deadline =
        Some(deadline).filter(|deadline| (STORE_DEADLINES.0..=STORE_DEADLINES.1).contains(deadline));
    deadline.ok_or_else(|| format!("out of range; {accepted}"))
}

/// Parses how many servers share a store.
pub(crate) fn nodes(text: &str) -> Result<NodesChoice, String> {
    match text {
        "auto" => Ok(NodesChoice::Counted),
        _ => {
            let number = text.parse().ok().filter(|number| (1..=10_000).contains(number));
            number
                .map(NodesChoice::Fixed)
                .ok_or_else(|| "accepted: auto, or a whole number from 1 to 10000".to_owned())
        }
    }
}

fn secret(file: Option<&Path>) -> Result<Option<Vec<u8>>, String> {
    let secret = match file {
        Some(path) => Some(word(path)?),
        None => environment("TOLLGATE_STORE_SECRET"),
    };
    Ok(secret.map(String::into_bytes))
}

/// An environment variable with a secret. An empty one counts as missing. clap does not read it, because clap would
/// show it.
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(url: &str) -> StoreSettings {
        StoreSettings { url: Some(url.to_owned()), ..StoreSettings::default() }
    }

    fn compiled(text: &str) -> (StoreSettings, Vec<String>) {
        let document: StoreDocument = crate::document::from_text(text).unwrap();
        let mut problems = Vec::new();
        (document.compile(&mut problems), problems)
    }

    fn document(text: &str) -> StoreSettings {
        let (settings, problems) = compiled(text);
        assert!(problems.is_empty(), "{problems:?}");
        settings
    }

    fn shared(given: &StoreSettings, file: &StoreSettings) -> SharedStore {
        match StoreChoice::of(given, file) {
            Ok(StoreChoice::Shared(shared)) => *shared,
            Ok(StoreChoice::Memory) => panic!("memory"),
            Err(problem) => panic!("{problem}"),
        }
    }

    /// The default is memory. Each setting on the command line takes precedence over the file.
    #[test]
    fn the_command_line_overrides_the_file() {
        let nothing = StoreSettings::default();
        assert!(matches!(StoreChoice::of(&StoreSettings::default(), &nothing), Ok(StoreChoice::Memory)));
        assert!(matches!(
            StoreChoice::of(&given("memory"), &document("url: redis://h")),
            Ok(StoreChoice::Memory)
        ));
        let file = document("{url: 'redis://filed', deadline: 7ms, nodes: 4, min_nodes: 2}");
        let from_file = shared(&StoreSettings::default(), &file);
        assert_eq!(from_file.settings.topology().to_string(), "redis://filed:6379");
        assert_eq!((from_file.settings.timeout(), from_file.min_nodes), (Duration::from_millis(7), Some(2)));
        let typed = StoreSettings { deadline: store_deadline("3ms").ok(), ..given("redis://typed") };
        let both = shared(&typed, &file);
        assert_eq!(both.settings.topology().to_string(), "redis://typed:6379");
        assert_eq!((both.settings.timeout(), both.min_nodes), (Duration::from_millis(3), Some(2)));
    }

    /// Errors list the accepted values and never echo the input, which may contain a password.
    #[test]
    fn problems_show_no_password() {
        let problem = |given: &StoreSettings, file: &str| match StoreChoice::of(given, &document(file)) {
            Err(problem) => problem,
            Ok(_) => panic!("it was taken"),
        };
        for url in ["s3cret", "redis://u:s3cret@h:x", "http://u:s3cret@h"] {
            let problem = problem(&given(url), "{}");
            assert!(
                problem.contains("redis") && problem.contains("memory") && !problem.contains("s3cret"),
                "{problem}"
            );
        }
        for (text, expected) in [
            ("deadline: 2s", "store.deadline: out of range; accepted: 1ms to 50ms"),
            ("nodes: many", "store.nodes: \"many\" is not accepted; accepted: auto, or a whole number"),
            (
                "nodes: 0",
                "store.nodes: \"0\" is not accepted; accepted: auto, or a whole number from 1 to 10000",
            ),
            ("url: 'redis://u:s3cret@h:x'", "store.url: "),
        ] {
            let (_, problems) = compiled(text);
            assert!(problems.len() == 1 && problems[0].starts_with(expected), "{problems:?}");
            assert!(!problems[0].contains("s3cret"), "{problems:?}");
        }
        assert!(problem(&given("redis://h"), "user: u").contains("--store-password-file"));
        assert!(problem(&given("redis://h"), "ca: x.pem").contains("rediss://"));
        assert!(problem(&given("rediss://h"), "cert: x.pem").contains("key"));
    }
}
