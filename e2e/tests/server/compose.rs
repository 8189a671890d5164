//! Compose files, as far as they can be checked without Docker: everything that they name exists, and the programs that
//! they start are started here, with the files that they mount.

use std::path::PathBuf;

use serde_json::Value;

use crate::program::{Server, run, stdout, tollgate};
use crate::proxy::file;

/// The compose file of a directory.
pub(crate) struct Compose {
    folder: PathBuf,
    document: Value,
}

impl Compose {
    /// Reads the file, and checks that everything it names exists.
    pub(crate) fn read(folder: &str) -> Self {
        let folder = file(folder);
        let text = std::fs::read_to_string(folder.join("compose.yaml")).unwrap();
        let compose = Self { folder, document: serde_saphyr::from_str(&text).unwrap() };
        let services = compose.document["services"].as_object().unwrap();
        assert!(!services.is_empty());
        services.keys().for_each(|name| compose.check(name));
        compose
    }

    fn check(&self, name: &str) {
        let service = &self.document["services"][name];
        match service["build"].as_str() {
            Some(context) => assert!(self.folder.join(context).join("Dockerfile").is_file(), "{context}"),
            // A version that does not change: `latest` would.
            None => assert!(service["image"].as_str().unwrap().contains(':'), "{name} has no image"),
        }
        for (source, _) in self.volumes(name) {
            let is_there = match source.starts_with('.') {
                true => self.folder.join(&source).is_file(),
                false => self.document["volumes"].as_object().unwrap().contains_key(&source),
            };
            assert!(is_there, "{name} mounts {source}");
        }
        for needed in service["depends_on"].as_array().into_iter().flatten() {
            assert!(self.document["services"].get(needed.as_str().unwrap()).is_some(), "{needed}");
        }
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(
                port.as_str().unwrap().starts_with("127.0.0.1:"),
                "{name} publishes {port} to the network"
            );
        }
        let help = stdout(&run(&["serve", "--help"], b""));
        for (setting, _) in self.environment(name) {
            assert!(!setting.starts_with("TOLLGATE_") || help.contains(&setting), "{setting}");
        }
    }

    /// The mounts of a service, and where.
    fn volumes(&self, service: &str) -> Vec<(String, String)> {
        let volumes = self.document["services"][service]["volumes"].as_array().into_iter().flatten();
        let parts = volumes.map(|volume| volume.as_str().unwrap().split(':').map(str::to_owned));
        parts.map(|mut parts| (parts.next().unwrap(), parts.next().unwrap())).collect()
    }

    pub(crate) fn environment(&self, service: &str) -> Vec<(String, String)> {
        let settings = self.document["services"][service]["environment"].as_object().into_iter().flatten();
        settings.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect()
    }

    /// Text with files of the repository for the paths of a container that mounts them.
    pub(crate) fn outside(&self, service: &str, text: &str) -> String {
        let replace = |text: String, (source, target): (String, String)| {
            text.replace(&target, self.folder.join(source).to_str().unwrap())
        };
        self.volumes(service)
            .into_iter()
            .filter(|(source, _)| source.starts_with('.'))
            .fold(text.to_owned(), replace)
    }

    /// The command of a service, as it is started outside of a container.
    pub(crate) fn command(&self, service: &str) -> Vec<String> {
        let words = self.document["services"][service]["command"].as_array().unwrap();
        words.iter().map(|word| self.outside(service, word.as_str().unwrap())).collect()
    }

    /// Tollgate as the service `tollgate` starts it, on free ports. `changes` are for addresses in its command.
    pub(crate) fn tollgate(&self, changes: &[(&str, &str)]) -> Server {
        let mut words = self.command("tollgate");
        for (from, to) in changes {
            words.iter_mut().for_each(|word| *word = word.replace(from, to));
        }
        let mut command = tollgate(&words.iter().map(String::as_str).collect::<Vec<_>>());
        command.envs(self.environment("tollgate")).env("TOLLGATE_HTTP", "127.0.0.1:0");
        // A busy machine may need longer than the 5 ms that a decision has.
        command.env("TOLLGATE_STORE_DEADLINE", "50ms");
        Server::spawn(command, "")
    }
}
