`deleteTopicWithBrokerRegistration=true` of a name server: topics that a master no longer registers leave its routes.
