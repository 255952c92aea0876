//! The procedures we call, by their numbers in libvirt's protocol.

use crate::message::{ADMIN, REMOTE};

/// A procedure of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Procedure {
    /// The program.
    pub program: u32,
    /// Its number there.
    pub number: i32,
    /// What people call it, for messages.
    pub name: &'static str,
}

macro_rules! procedures {
    ($program:ident: $($constant:ident = $number:literal $name:literal;)*) => {
        $(pub const $constant: Procedure = Procedure {
            program: $program,
            number: $number,
            name: $name,
        };)*
    };
}

procedures! { REMOTE:
    CONNECT_OPEN = 1 "open";
    CONNECT_CLOSE = 2 "close";
    CONNECT_GET_TYPE = 3 "get type";
    CONNECT_GET_VERSION = 4 "get version";
    NODE_GET_INFO = 6 "get node info";
    CONNECT_GET_CAPABILITIES = 7 "get capabilities";
    DOMAIN_CREATE_XML = 10 "create domain from XML";
    DOMAIN_GET_XML_DESC = 14 "get domain XML";
    DOMAIN_LOOKUP_BY_NAME = 23 "lookup domain by name";
    DOMAIN_LOOKUP_BY_UUID = 24 "lookup domain by UUID";
    DOMAIN_REBOOT = 27 "reboot domain";
    DOMAIN_RESUME = 28 "resume domain";
    DOMAIN_SHUTDOWN = 33 "shut down domain";
    DOMAIN_SUSPEND = 34 "suspend domain";
    CONNECT_GET_HOSTNAME = 59 "get hostname";
    CONNECT_SUPPORTS_FEATURE = 60 "supports feature";
    AUTH_LIST = 66 "list authentication methods";
    SECRET_LOOKUP_BY_UUID = 141 "lookup secret by UUID";
    SECRET_DEFINE_XML = 142 "define secret";
    SECRET_GET_XML_DESC = 143 "get secret XML";
    SECRET_SET_VALUE = 144 "set secret value";
    SECRET_GET_VALUE = 145 "get secret value";
    SECRET_UNDEFINE = 146 "undefine secret";
    SECRET_LOOKUP_BY_USAGE = 147 "lookup secret by usage";
    CONNECT_GET_LIB_VERSION = 157 "get library version";
    DOMAIN_ATTACH_DEVICE_FLAGS = 160 "attach device";
    DOMAIN_DETACH_DEVICE_FLAGS = 161 "detach device";
    DOMAIN_ABORT_JOB = 164 "abort job";
    DOMAIN_MIGRATE_SET_MAX_DOWNTIME = 166 "set migration's downtime";
    DOMAIN_CREATE_WITH_FLAGS = 196 "create domain";
    DOMAIN_MIGRATE_SET_MAX_SPEED = 207 "set migration's speed";
    DOMAIN_INJECT_NMI = 210 "inject NMI";
    DOMAIN_GET_STATE = 212 "get domain state";
    NODE_GET_CPU_STATS = 227 "get node CPU statistics";
    NODE_GET_MEMORY_STATS = 228 "get node memory statistics";
    DOMAIN_UNDEFINE_FLAGS = 231 "undefine domain";
    DOMAIN_DESTROY_FLAGS = 234 "destroy domain";
    DOMAIN_RESET = 245 "reset domain";
    DOMAIN_SET_METADATA = 264 "set metadata";
    DOMAIN_GET_METADATA = 265 "get metadata";
    DOMAIN_SHUTDOWN_FLAGS = 258 "shut down domain";
    CONNECT_LIST_ALL_DOMAINS = 273 "list domains";
    CONNECT_LIST_ALL_SECRETS = 287 "list secrets";
    DOMAIN_GET_JOB_STATS = 298 "get job statistics";
    DOMAIN_MIGRATE_PERFORM3_PARAMS = 305 "migrate domain";
    EVENT_REGISTER = 316 "subscribe to events";
    EVENT_DEREGISTER = 317 "unsubscribe from events";
    CONNECT_GET_DOMAIN_CAPABILITIES = 342 "get domain capabilities";
    CONNECT_GET_ALL_DOMAIN_STATS = 344 "get domain statistics";
    DOMAIN_DEFINE_XML_FLAGS = 350 "define domain";
    DOMAIN_MIGRATE_START_POST_COPY = 364 "start post-copy";
}

procedures! { ADMIN:
    ADMIN_OPEN = 1 "open administration";
    ADMIN_GET_LIB_VERSION = 3 "get library version";
    ADMIN_LIST_SERVERS = 4 "list servers";
    ADMIN_LOOKUP_SERVER = 5 "lookup server";
    ADMIN_UPDATE_TLS_FILES = 18 "reload TLS files";
}
