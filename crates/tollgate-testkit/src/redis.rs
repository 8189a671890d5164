//! Real redis-servers as child processes, each on a port and in a directory of its own, ended when the test is over.

use std::process::{Child, Command, Stdio};

use crate::{Scratch, free_port, until};

/// A server.
pub struct Redis {
    child: Child,
    pub port: u16,
    arguments: Vec<String>,
    _folder: Scratch,
}

impl Redis {
    /// Starts a server with these settings besides its port and its directory, and returns once it answers.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_at(free_port(), arguments)
    }

    pub fn start_at(port: u16, arguments: &[&str]) -> Self {
        let folder = Scratch::new();
        let mut all = vec!["--port".to_owned(), port.to_string(), "--dir".to_owned(), folder.text("")];
        all.extend(["--save", "", "--bind", "127.0.0.1"].map(str::to_owned));
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let child = spawned(&all);
        let redis = Self { child, port, arguments: all, _folder: folder };
        redis.answers();
        redis
    }

    /// Starts a server by a configuration file and what is printed besides.
    pub fn with_file(file: &str, arguments: &[&str]) -> Self {
        let (folder, port) = (Scratch::new(), free_port());
        let mut all =
            [file, "--port", &port.to_string(), "--dir", &folder.text("")].map(str::to_owned).to_vec();
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let redis = Self { child: spawned(&all), port, arguments: all, _folder: folder };
        redis.answers();
        redis
    }

    /// Starts a sentinel by its file, in the folder of which it lives.
    pub fn sentinel(folder: Scratch, file: &str) -> Self {
        let port = free_port();
        let all = [file, "--sentinel", "--port", &port.to_string()].map(str::to_owned).to_vec();
        let redis = Self { child: spawned(&all), port, arguments: all, _folder: folder };
        redis.answers();
        redis
    }

    /// Waits until it answers, whatever it answers.
    fn answers(&self) {
        until("redis-server answers", || (!self.cli(&["PING"]).contains("Could not connect")).then_some(()));
    }

    /// Ends it as a power cut does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again where it was.
    pub fn start_again(&mut self) {
        self.child = spawned(&self.arguments);
        self.answers();
    }

    /// Sends a signal, such as -STOP.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The output of redis-cli for a command.
    pub fn cli(&self, arguments: &[&str]) -> String {
        cli(self.port, arguments)
    }

    /// The output of redis-cli for a command, without the end of the line.
    pub fn run(&self, arguments: &[&str]) -> String {
        self.cli(arguments).trim().to_owned()
    }

    /// The same for something that must succeed.
    pub fn tell(&self, arguments: &[&str]) {
        assert_eq!(self.cli(arguments).trim(), "OK", "{arguments:?}");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawned(arguments: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("redis-server cannot be started; `./test tools` installs it")
}

fn cli(port: u16, arguments: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-p", &port.to_string()]).args(arguments).stdin(Stdio::null());
    let output = command.output().expect("redis-cli cannot be started; `./test tools` installs it");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// A cluster: as many primaries as there are ranges of slots, each with so many replicas.
pub struct Cluster {
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// Three primaries, each with this many replicas.
    pub fn start(replicas: usize, arguments: &[&str]) -> Self {
        let mut all = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        all.extend(arguments);
        let node = |_| {
            // The port that nodes speak to one another on, which would be taken from those of outgoing connections otherwise.
            let bus = free_port().to_string();
            Redis::start(&[&all[..], &["--cluster-port", &bus]].concat())
        };
        let nodes: Vec<Redis> = (0..3 + 3 * replicas).map(node).collect();
        let mut command = vec!["--cluster".to_owned(), "create".to_owned()];
        command.extend(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
        command.extend(["--cluster-replicas".to_owned(), replicas.to_string(), "--cluster-yes".to_owned()]);
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let printed = nodes[0].cli(&command);
        assert!(printed.contains("All 16384 slots covered"), "{printed}");
        let cluster = Self { nodes };
        let is_ready = |node: &Redis| {
            let (state, members) = (node.cli(&["CLUSTER", "INFO"]), node.cli(&["CLUSTER", "NODES"]));
            let count = members.lines().filter(|line| line.contains(" connected")).count();
            let followers = members.lines().filter(|line| line.contains("slave")).count();
            state.contains("cluster_state:ok") && count == cluster.nodes.len() && followers == 3 * replicas
        };
        until("the cluster is whole", || cluster.nodes.iter().all(is_ready).then_some(()));
        cluster
    }

    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.nodes.iter().take(3).map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }
}
