"""What all admin sites share: pages, rights, and questions to other sites."""
