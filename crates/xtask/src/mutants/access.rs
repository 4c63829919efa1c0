//! Broken rules of users and grants.

use super::{Mutant, property, unit};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "handed-on-without-a-finalizer",
        planted: "A user is handed on to the agents before its deletion would be noticed.",
        breaks: "rule `finalizer`",
        file: "user/mod.rs",
        text: "(!facts.wanted.finalizer)",
        instead: "(false)",
        found_by: unit("user::tests::a_new_user_is_handed_on_and_ready_when_the_primary_says_so"),
    },
    Mutant {
        name: "another-password-is-not-handed-on",
        planted: "A password that has changed in its Secret is not given to the role.",
        breaks: "rule `publish`",
        file: "user/mod.rs",
        text: "!is_same || !is_current",
        instead: "!is_same",
        found_by: unit("user::tests::no_password_is_written_again_unless_it_has_changed"),
    },
    Mutant {
        name: "an-old-report-counts",
        planted: "A user is Ready since the primary has settled what the spec said before.",
        breaks: "rule `tell`",
        file: "user/mod.rs",
        text: "(report.of == published.at)",
        instead: "(true)",
        found_by: unit("user::tests::what_was_told_of_an_earlier_entry_does_not_count"),
    },
    Mutant {
        name: "somebodys-role-is-ours",
        planted: "A role that somebody else has made is taken over though nobody has asked for it.",
        breaks: "a plan touches nothing else",
        file: "access/plan.rs",
        text: "role.comment.as_deref() == Some(&mark(&declared.uid))",
        instead: "true",
        found_by: unit("access::tests::a_role_of_somebody_else_is_left_alone_unless_it_is_to_be_taken_over"),
    },
    Mutant {
        name: "more-is-taken-than-was-said",
        planted: "A policy that only gives takes away what is not declared.",
        breaks: "a plan touches nothing else",
        file: "access/plan.rs",
        text: "declared.adoption == Adoption::KeepUnlisted || declared.policy == ManagementPolicy::Additive",
        instead: "false",
        found_by: property("access::tests::a_role_has_what_is_declared"),
    },
    Mutant {
        name: "a-superusers-login-is-given-away",
        planted: "A superuser is taken over, with all that it owns.",
        breaks: "a plan touches nothing else",
        file: "access/plan.rs",
        text: "role.is_mighty && (keeps || !is_own(declared, role))",
        instead: "false",
        found_by: unit("access::tests::a_role_of_somebody_else_is_left_alone_unless_it_is_to_be_taken_over"),
    },
];
