//! Data that a token guards: in the slot of the name, or one script could not see both.

use super::{Cluster, route::AskRule, slots::slot};
use crate::{
    backend::{
        FencedSteps, Reply,
        fenced::{FencedRead, FencedWrite, Written},
    },
    error::Invalid,
    name::Name,
};

impl FencedSteps for Cluster {
    fn keeps_data(&self, name: &Name, key: &Name) -> Result<(), Invalid> {
        let [of_name, of_key] = [name, key].map(|it| slot(it.wire()));
        if of_name == of_key {
            return Ok(());
        }
        let value = format!("{:?}, in slot {of_key} of the cluster", key.shown());
        let limit = format!("in slot {of_name}, as {:?} is", name.shown());
        let tag = name.shown();
        let remedy = if name.wire().contains('{') {
            "give the key the hash tag of the name".to_owned()
        } else {
            format!("put the name into the key in braces, such as \"{{{tag}}}:data\"")
        };
        Err(Invalid::new("key", value, limit).remedy(remedy))
    }

    fn write(&self, step: FencedWrite) -> Reply<Written> {
        let name = step.name.clone();
        self.patient(&name, AskRule::Never, move |redis| {
            redis.write(step.clone())
        })
    }

    fn read(&self, step: FencedRead) -> Reply<Option<Vec<u8>>> {
        let name = step.name.clone();
        self.patient(&name, AskRule::Never, move |redis| redis.read(step.clone()))
    }
}
