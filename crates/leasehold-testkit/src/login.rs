//! The login of a group's servers of data.

/// A user beside the default one, and the password of both.
#[derive(Debug, Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl Login {
    /// The arguments of a server that wants this login, and uses it with the others of its group.
    pub(crate) fn args(&self) -> Vec<String> {
        let mut args = Vec::new();
        if let Some(password) = &self.password {
            args.extend(["--requirepass", password, "--masterauth", password].map(str::to_owned));
            if let Some(user) = &self.user {
                let rules = ["on", &format!(">{password}"), "~*", "&*", "+@all"];
                args.extend(["--masteruser", user, "--user", user].map(str::to_owned));
                args.extend(rules.map(str::to_owned));
            }
        }
        args
    }

    /// `USER:PASSWORD@`, or nothing.
    pub(crate) fn in_url(&self) -> String {
        let user = self.user.as_deref().unwrap_or_default();
        let password = self.password.as_ref();
        let login = password.map(|password| format!("{user}:{password}@"));
        login.unwrap_or_default()
    }
}
