"""Who may do what: principals, ACLs and the authorizer over them."""
