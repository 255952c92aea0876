//! Where credentials come from: given, variables `OS_*`, and a directory of files of these names.
//!
//! A mounted Secret is such a directory: each key is the name of a variable. What it says wins over
//! the environment, so an address may be in one and the password in the other. Files are read
//! again while the program runs; the environment is not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::credentials::{
    Credentials, CredentialsError, Identity, Interface, Reference, Scope, Secret,
};
use crate::service::Service;

type Result<T, E = CredentialsError> = std::result::Result<T, E>;

/// Keystone's own name for the domain that is always there.
const DEFAULT_DOMAIN: &str = "default";
/// How long a command may take to print a password.
const COMMAND_DEADLINE: Duration = Duration::from_secs(10);
/// A larger file holds no credentials.
const LARGEST_FILE: u64 = 1 << 20;

/// Where credentials come from.
#[derive(Debug, Clone)]
pub struct Source {
    from: From,
    scope: Option<Scope>,
}

#[derive(Debug, Clone)]
enum From {
    Given(Box<Credentials>),
    Variables {
        // Secrets among them: never printed.
        variables: BTreeMap<String, Secret>,
        directory: Option<PathBuf>,
    },
}

impl Source {
    /// These, for ever.
    #[must_use]
    pub fn given(credentials: Credentials) -> Self {
        Self {
            from: From::Given(Box::new(credentials)),
            scope: None,
        }
    }

    /// The variables `OS_*` of this process.
    #[must_use]
    pub fn environment() -> Self {
        // A variable that is no text cannot be one of ours.
        let text = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self::variables(text)
    }

    /// Variables as an environment has them.
    pub fn variables(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let ours = variables
            .into_iter()
            .filter(|(name, value)| name.starts_with("OS_") && !value.is_empty())
            .map(|(name, value)| (name, Secret::new(value)));
        Self {
            from: From::Variables {
                variables: ours.collect(),
                directory: None,
            },
            scope: None,
        }
    }

    /// Files named as the variables, alone.
    #[must_use]
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self::variables([]).with_directory(path)
    }

    /// Adds files named as the variables; they win. Credentials that were given stay as they are.
    #[must_use]
    pub fn with_directory(mut self, path: impl Into<PathBuf>) -> Self {
        if let From::Variables { directory, .. } = &mut self.from {
            *directory = Some(path.into());
        }
        self
    }

    /// The same user for something else.
    #[must_use]
    pub fn scoped(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Reads them.
    pub(crate) async fn read(&self) -> Result<Credentials> {
        let mut credentials = match &self.from {
            From::Given(credentials) => (**credentials).clone(),
            From::Variables {
                variables,
                directory,
            } => {
                let mut variables = variables.clone();
                if let Some(directory) = directory {
                    variables.extend(read_directory(directory).await?);
                }
                let mut credentials = parse(&variables)?;
                if let Some(path) = credentials.ca.take_if(|ca| !ca.contains("-----BEGIN")) {
                    credentials.ca = Some(read_file(Path::new(&path)).await?);
                }
                credentials
            }
        };
        if let Some(scope) = &self.scope {
            if credentials.has_fixed_scope() {
                return Err(CredentialsError::FixedScope);
            }
            credentials.scope = scope.clone();
        }
        Ok(credentials)
    }
}

/// What a shell would give a meaning to.
const SHELL: &str = "|&;<>()$`\n";

/// The words of a command line: separated by spaces, with quotes and backslashes as a shell has them.
/// Nothing is expanded and nothing else is run, so what only a shell understands is refused.
fn words(line: &str) -> Result<Vec<String>> {
    let bad = |why: String| CredentialsError::Command(why);
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next() {
                        Some(end) if end == c => break,
                        Some('\\') if c == '"' => match rest.next() {
                            Some(quoted @ ('"' | '\\')) => word.push(quoted),
                            other => {
                                word.push('\\');
                                word.extend(other);
                            }
                        },
                        Some(other) => word.push(other),
                        None => return Err(bad("a quote has no end".to_owned())),
                    }
                }
            }
            '\\' => match rest.next() {
                Some(quoted) => word.get_or_insert_default().push(quoted),
                None => return Err(bad("it ends with a backslash".to_owned())),
            },
            c if SHELL.contains(c) => {
                return Err(bad(format!(
                    "it has {c:?} outside of quotes, and no shell runs it: put it into a script and \
                     name that"
                )));
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Runs the command that prints a password: the program itself, without a shell.
pub(crate) async fn run_command(command: &Secret) -> Result<Secret> {
    let words = words(command.reveal())?;
    let Some((program, arguments)) = words.split_first() else {
        return Err(CredentialsError::Command("it is empty".into()));
    };
    let run = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = match tokio::time::timeout(COMMAND_DEADLINE, run).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(CredentialsError::Command(error.to_string())),
        Err(_) => return Err(CredentialsError::Command("it did not end".into())),
    };
    if !output.status.success() {
        return Err(CredentialsError::Command(output.status.to_string()));
    }
    match String::from_utf8_lossy(&output.stdout).trim_end_matches(['\r', '\n']) {
        "" => Err(CredentialsError::Command("it printed nothing".into())),
        password => Ok(Secret::new(password)),
    }
}

async fn read_directory(directory: &Path) -> Result<BTreeMap<String, Secret>> {
    // Kubernetes replaces all files of a mounted Secret at once by moving this link. Resolved once,
    // the files belong together.
    let files = match tokio::fs::canonicalize(directory.join("..data")).await {
        Ok(files) => files,
        Err(_) => directory.to_owned(),
    };
    let failed = |source| CredentialsError::Read {
        path: files.clone(),
        source,
    };
    let mut variables = BTreeMap::new();
    let mut entries = tokio::fs::read_dir(&files).await.map_err(failed)?;
    while let Some(entry) = entries.next_entry().await.map_err(failed)? {
        if let Ok(name) = entry.file_name().into_string()
            && name.starts_with("OS_")
        {
            let text = read_file(&entry.path()).await?;
            let text = text.trim_end_matches(['\r', '\n']);
            if !text.is_empty() {
                variables.insert(name, Secret::new(text));
            }
        }
    }
    Ok(variables)
}

async fn read_file(path: &Path) -> Result<String> {
    let failed = |source| CredentialsError::Read {
        path: path.to_owned(),
        source,
    };
    let size = tokio::fs::metadata(path).await.map_err(failed)?.len();
    if size > LARGEST_FILE {
        return Err(failed(std::io::Error::other("it is too large")));
    }
    tokio::fs::read_to_string(path).await.map_err(failed)
}

/// Reads variables as OpenStack's own clients do. `ca` may still be a path.
fn parse(variables: &BTreeMap<String, Secret>) -> Result<Credentials> {
    let get = |name: &str| variables.get(name).map(|value| value.reveal().to_owned());
    let first = |names: &[&str]| names.iter().find_map(|name| get(name));
    let need = |name: &'static str| get(name).ok_or(CredentialsError::Missing(name));
    if let Some(value) = get("OS_INSECURE")
        && !["0", "false", "no"].contains(&value.to_lowercase().as_str())
    {
        return Err(CredentialsError::Unsupported {
            name: "OS_INSECURE",
            value,
            why: "certificates are always checked; give their authority in OS_CACERT",
        });
    }

    let reference = |id: &[&str], name: &[&str], domain: Option<Reference>| {
        first(id).map(Reference::Id).or_else(|| {
            Some(Reference::Name {
                name: first(name)?,
                domain: domain.map(Box::new),
            })
        })
    };
    let default_domain = reference(&["OS_DOMAIN_ID"], &["OS_DOMAIN_NAME"], None)
        .or_else(|| get("OS_DEFAULT_DOMAIN").map(Reference::Id));
    let user_domain = reference(&["OS_USER_DOMAIN_ID"], &["OS_USER_DOMAIN_NAME"], None)
        .or_else(|| default_domain.clone())
        .unwrap_or_else(|| Reference::Id(DEFAULT_DOMAIN.into()));
    let project_domain = reference(&["OS_PROJECT_DOMAIN_ID"], &["OS_PROJECT_DOMAIN_NAME"], None)
        .or(default_domain)
        .unwrap_or_else(|| user_domain.clone());
    let user = reference(
        &["OS_USER_ID", "OS_USERID"],
        &["OS_USERNAME"],
        Some(user_domain),
    );
    let need_user = || user.clone().ok_or(CredentialsError::Missing("OS_USERNAME"));

    let by_credential = match get("OS_AUTH_TYPE").as_deref() {
        None => get("OS_APPLICATION_CREDENTIAL_SECRET").is_some(),
        Some("v3applicationcredential") => true,
        Some("password" | "v3password") => false,
        Some(other) => {
            return Err(CredentialsError::Unsupported {
                name: "OS_AUTH_TYPE",
                value: other.to_owned(),
                why: "use password or v3applicationcredential",
            });
        }
    };
    let identity = if by_credential {
        let secret = Secret::new(need("OS_APPLICATION_CREDENTIAL_SECRET")?);
        match get("OS_APPLICATION_CREDENTIAL_ID") {
            Some(id) => Identity::ApplicationCredential { id, secret },
            None => Identity::NamedApplicationCredential {
                name: get("OS_APPLICATION_CREDENTIAL_NAME")
                    .ok_or(CredentialsError::Missing("OS_APPLICATION_CREDENTIAL_ID"))?,
                user: need_user()?,
                secret,
            },
        }
    } else {
        match (get("OS_PASSWORD"), get("OS_PW_CMD")) {
            (None, Some(command)) => Identity::PasswordCommand {
                user: need_user()?,
                command: Secret::new(command),
            },
            (Some(password), _) => Identity::Password {
                user: need_user()?,
                password: Secret::new(password),
            },
            (None, None) => return Err(CredentialsError::Missing("OS_PASSWORD")),
        }
    };

    let project = reference(
        &["OS_PROJECT_ID", "OS_TENANT_ID"],
        &["OS_PROJECT_NAME", "OS_TENANT_NAME"],
        Some(project_domain),
    );
    let scope = match (get("OS_SYSTEM_SCOPE"), project) {
        (Some(_), _) => Scope::System,
        (None, Some(project)) => Scope::Project(project),
        // It has its own.
        (None, None) if by_credential => Scope::System,
        (None, None) => return Err(CredentialsError::Missing("OS_PROJECT_NAME")),
    };
    let interface = match first(&["OS_INTERFACE", "OS_ENDPOINT_TYPE"]) {
        None => Interface::Public,
        Some(value) => Interface::parse(&value).ok_or(CredentialsError::Unsupported {
            name: "OS_INTERFACE",
            value,
            why: "use public, internal or admin",
        })?,
    };
    let endpoints = Service::ALL
        .into_iter()
        .filter_map(|service| Some((service, get(service.override_variable())?)));
    Ok(Credentials {
        auth_url: need("OS_AUTH_URL")?,
        identity,
        scope,
        region: get("OS_REGION_NAME"),
        interface,
        ca: get("OS_CACERT"),
        endpoints: endpoints.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(pairs: &[(&str, &str)]) -> Source {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Source::variables(pairs.iter().map(owned))
    }

    const USER: [(&str, &str); 5] = [
        ("OS_AUTH_URL", "http://k/v3"),
        ("OS_USERNAME", "nova"),
        ("OS_PASSWORD", "one"),
        ("OS_PROJECT_NAME", "service"),
        ("OS_USER_DOMAIN_NAME", "Default"),
    ];

    #[tokio::test]
    async fn the_variables_of_the_deployed_operator_are_understood() {
        let credentials = source(&USER).read().await.unwrap();
        let domain = Reference::named("Default");
        let expected = Credentials::password(
            "http://k/v3",
            Reference::named_in("nova", domain.clone()),
            Secret::new("one"),
            Reference::named_in("service", domain),
        );
        assert_eq!(credentials, expected);
    }

    #[tokio::test]
    async fn what_is_missing_is_named() {
        for (left_out, named) in [
            ("OS_AUTH_URL", "OS_AUTH_URL"),
            ("OS_USERNAME", "OS_USERNAME"),
            ("OS_PASSWORD", "OS_PASSWORD"),
            ("OS_PROJECT_NAME", "OS_PROJECT_NAME"),
        ] {
            let rest: Vec<_> = USER
                .into_iter()
                .filter(|(name, _)| *name != left_out)
                .collect();
            let error = source(&rest).read().await.unwrap_err();
            assert_eq!(error.to_string(), format!("{named} is not set"));
        }
    }

    #[tokio::test]
    async fn what_is_not_supported_is_said() {
        for pair in [
            ("OS_AUTH_TYPE", "v3oidcpassword"),
            ("OS_INSECURE", "true"),
            ("OS_INTERFACE", "x"),
        ] {
            let error = source(&[&USER[..], &[pair]].concat())
                .read()
                .await
                .unwrap_err();
            assert!(error.to_string().contains(pair.0), "{error}");
        }
    }

    #[tokio::test]
    async fn a_directory_wins_over_the_environment_and_is_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        let source = source(&USER).with_directory(dir.path());
        let password = async || match source.read().await.unwrap().identity {
            Identity::Password { password, .. } => password.reveal().to_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(password().await, "one");
        std::fs::write(dir.path().join("OS_PASSWORD"), "two\n").unwrap();
        std::fs::write(dir.path().join("README"), "no variable").unwrap();
        assert_eq!(password().await, "two");
        // As Kubernetes mounts a Secret: only what the link shows counts.
        let second = dir.path().join("..second");
        std::fs::create_dir(&second).unwrap();
        std::fs::write(second.join("OS_PASSWORD"), "three").unwrap();
        std::os::unix::fs::symlink("..second", dir.path().join("..data")).unwrap();
        assert_eq!(password().await, "three");
    }

    #[tokio::test]
    async fn w46_a_password_command_runs_at_each_login() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let command = Secret::new(format!("cat {}", file.display()));
        for password in ["one", "two"] {
            std::fs::write(&file, format!("{password}\n")).unwrap();
            assert_eq!(run_command(&command).await.unwrap(), Secret::new(password));
        }
        for broken in ["false", "true", "", "/no/such/program"] {
            run_command(&Secret::new(broken)).await.unwrap_err();
        }
    }

    #[tokio::test]
    async fn a_password_command_runs_without_a_shell() {
        let dir = tempfile::tempdir().unwrap();
        let trace = dir.path().join("trace");
        for line in [
            "echo a; touch TRACE",
            "echo $(touch TRACE)",
            "echo a > TRACE",
            "echo `touch TRACE`",
        ] {
            let line = line.replace("TRACE", trace.to_str().unwrap());
            let error = run_command(&Secret::new(&line)).await.unwrap_err();
            assert!(error.to_string().contains("no shell runs it"), "{error}");
            assert!(!trace.exists(), "{line}");
        }
        // In quotes it is a word like any other.
        let printed = run_command(&Secret::new("echo '$(id); a|b'")).await;
        assert_eq!(printed.unwrap(), Secret::new("$(id); a|b"));
    }

    #[test]
    fn words_are_those_that_a_shell_would_see() {
        let cases: [(&str, &[&str]); 8] = [
            ("", &[]),
            ("  pass  show\tx ", &["pass", "show", "x"]),
            ("a 'b c' \"d e\"", &["a", "b c", "d e"]),
            ("a'b'\"c\"d", &["abcd"]),
            (r#"a "b\"c\\d\e" '\'"#, &["a", r#"b"c\d\e"#, r"\"]),
            (r"a\ b \'", &["a b", "'"]),
            ("a '' \"\"", &["a", "", ""]),
            ("p --x='$y'", &["p", "--x=$y"]),
        ];
        for (line, expected) in cases {
            assert_eq!(words(line).unwrap(), expected, "{line}");
        }
        for bad in ["'a", "\"a", "a\\", "a | b", "a\nb", "$A", "(a)"] {
            words(bad).unwrap_err();
        }
    }

    #[tokio::test]
    async fn certificates_are_a_path_or_the_text_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nx").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for value in [path.to_str().unwrap(), &text] {
            let credentials = source(&[&USER[..], &[("OS_CACERT", value)]].concat())
                .read()
                .await;
            assert_eq!(credentials.unwrap().ca.as_deref(), Some(text.as_str()));
        }
    }

    #[tokio::test]
    async fn an_application_credential_cannot_change_its_project() {
        let pairs = [
            ("OS_AUTH_URL", "http://k"),
            ("OS_APPLICATION_CREDENTIAL_ID", "a"),
            ("OS_APPLICATION_CREDENTIAL_SECRET", "s"),
        ];
        source(&pairs).read().await.unwrap();
        let error = source(&pairs)
            .scoped(Scope::System)
            .read()
            .await
            .unwrap_err();
        assert!(matches!(error, CredentialsError::FixedScope));
    }
}
